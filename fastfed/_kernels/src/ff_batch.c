#include "ff_batch.h"

#include <math.h>
#include <stdlib.h>

#include "ff_linalg.h"
#include "ff_scores.h"

/* Number of doubles of scratch on the stack; larger scratch is allocated. */
#define STACK_DOUBLES 1024
/* From this many rows on, adding them to a packed copy of a matrix is faster. */
#define PACK_FROM 8
/* Number of rows that are added to the packed copy together. */
#define CHUNK 64
/* Limit on ||W x||^2, so that its square, which an update computes, does not overflow. */
#define LARGEST_SQUARE 1e150

/* ---- checks of values ------------------------------------------------------------------------ */

/* The exponent bits of a double. Here and below, bits are tested as integers, because compilers
 * vectorise such tests. A test gives -1 or 0. */
#define EXPONENT 0x7ff0000000000000
/* The bits of 2^480. */
#define MODERATE ((int64_t)(1023 + 480) << 52)
/* Chosen actions of a smaller squared norm have finite scores under any usual model. */
#define MODERATE_SQUARE 1e30
/* The exponent bits of a float. */
#define EXPONENT32 0x7f800000

/* Return 1 if all n numbers are finite. Infinities and NaN have an exponent of ones only. */
int ff_all_finite(const double *x, int64_t n)
{
    int64_t any_infinite = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t bits;
        memcpy(&bits, x + i, sizeof bits);
        any_infinite |= -((bits & EXPONENT) == EXPONENT);
    }
    return !any_infinite;
}

/* Return 1 if the absolute values of all n numbers are below 2^480, so that no product of two of
 * them overflows. */
static int all_moderate(const double *x, int64_t n)
{
    int64_t any_large = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t bits;
        memcpy(&bits, x + i, sizeof bits);
        any_large |= -((bits & EXPONENT) >= MODERATE);
    }
    return !any_large;
}

/* Return 1 if all n floats are finite. */
static int all_finite_f32(const float *x, int64_t n)
{
    int32_t any_infinite = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        any_infinite |= -((bits & EXPONENT32) == EXPONENT32);
    }
    return !any_infinite;
}

/* Return the largest absolute value of n numbers; infinity if any number is infinite or NaN. Bits
 * of absolute values are ordered like the values, with NaN above infinity. */
static double largest(const double *x, int64_t n)
{
    int64_t top = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= INT64_MAX;
        top = bits > top ? bits : top;
    }
    double value;
    memcpy(&value, &top, sizeof value);
    return value < INFINITY ? value : INFINITY;
}

/* Number of rows and columns of a tile. */
#define TILE 8

/* Return the bits of |x|, which are ordered like the values. */
FF_INLINE int64_t magnitude(double x)
{
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & INT64_MAX;
}

/* Return 1 if a (d, d) is finite and symmetric up to 1e-8 times its largest entry. */
int ff_is_symmetric(const double *a, int64_t d)
{
    const double largest_entry = largest(a, d * d);
    if (largest_entry == INFINITY)
        return 0;
    int64_t differences[TILE] FF_ALIGNED = {0};
    int64_t i = 0;
    /* Compare tiles with their transposed counterparts, so that memory is read row by row. */
    for (; i + TILE <= d; i += TILE)
        for (int64_t j = 0; j <= i; j += TILE) {
            double transposed[TILE * TILE] FF_ALIGNED;
            for (int c = 0; c < TILE; c++)
                for (int r = 0; r < TILE; r++)
                    transposed[r * TILE + c] = a[(j + c) * d + i + r];
            for (int r = 0; r < TILE; r++)
                for (int c = 0; c < TILE; c++) {
                    const int64_t difference =
                        magnitude(a[(i + r) * d + j + c] - transposed[r * TILE + c]);
                    differences[c] = difference > differences[c] ? difference : differences[c];
                }
        }
    for (; i < d; i++)
        for (int64_t j = 0; j < i; j++) {
            const int64_t difference = magnitude(a[i * d + j] - a[j * d + i]);
            differences[0] = difference > differences[0] ? difference : differences[0];
        }
    /* Differences were stored as bits, which are ordered like the values. */
    const int64_t limit = magnitude(1e-8 * largest_entry);
    int64_t any_beyond = 0;
    for (int c = 0; c < TILE; c++)
        any_beyond |= differences[c] > limit;
    return !any_beyond;
}

/* Return 1 if w (d, d) is a valid factor: finite, zero above the diagonal, positive on it. */
int ff_is_inverse_factor(const double *w, int64_t d)
{
    int64_t any_invalid = 0;
    for (int64_t i = 0; i < d; i++) {
        const double *row = w + i * d;
        for (int64_t j = 0; j <= i; j++) {
            int64_t bits;
            memcpy(&bits, row + j, sizeof bits);
            any_invalid |= -((bits & EXPONENT) == EXPONENT);
        }
        /* Zero, of either sign. */
        for (int64_t j = i + 1; j < d; j++) {
            int64_t bits;
            memcpy(&bits, row + j, sizeof bits);
            any_invalid |= bits & INT64_MAX;
        }
        any_invalid |= -!(row[i] > 0.0);
    }
    return !any_invalid;
}

/* Return x' a x for a symmetric a (d, d) and x (d). It is used for a check only, so the order of
 * the sum does not matter. scratch: d doubles. */
static double quadratic_form(const double *restrict a, const double *restrict x, int64_t d,
                             double *restrict scratch)
{
    memset(scratch, 0, (size_t)d * sizeof(double));
    int64_t i = 0;
    /* Eight rows together, so that each partial sum is loaded and stored once for all of them. */
    for (; i + 8 <= d; i += 8) {
        const double *restrict rows = a + i * d, *restrict f = x + i;
        for (int64_t j = 0; j < d; j++)
            scratch[j] += ((f[0] * rows[j] + f[1] * rows[d + j]) +
                           (f[2] * rows[2 * d + j] + f[3] * rows[3 * d + j])) +
                          ((f[4] * rows[4 * d + j] + f[5] * rows[5 * d + j]) +
                           (f[6] * rows[6 * d + j] + f[7] * rows[7 * d + j]));
    }
    for (; i < d; i++)
        for (int64_t j = 0; j < d; j++)
            scratch[j] += x[i] * a[i * d + j];
    return ff_dot(scratch, x, d);
}

/* Return the sum of the squares of n numbers. */
static double sum_of_squares(const double *x, int64_t n)
{
    double s[8] FF_ALIGNED = {0};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (int l = 0; l < 8; l++)
            s[l] += x[i + l] * x[i + l];
    for (int l = 0; i < n; i++, l++)
        s[l] += x[i] * x[i];
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

/* Return 1 if the inequality ||W x|| <= ||W||_F ||x|| proves that ||W x||^2 is below LARGEST_SQUARE
 * for all n rows x. */
static int norms_are_small(const double *w, const double *x, int64_t n, int64_t d)
{
    return sum_of_squares(w, d * d) * sum_of_squares(x, n * d) <= 0.5 * LARGEST_SQUARE;
}

/* Return 1 if the rows x (n, d) and their rewards y (n) are finite; y may be NULL. */
static int rows_are_finite(const double *x, const double *y, int64_t n, int64_t d)
{
    return ff_all_finite(x, n * d) && (!y || ff_all_finite(y, n));
}

/* Return scratch of `size` doubles: the local array (STACK_DOUBLES) if it is large enough, else
 * allocated memory, or NULL if there is none. */
static double *get_scratch(double *local, int64_t size)
{
    return size <= STACK_DOUBLES ? local : malloc((size_t)size * sizeof(double));
}

/* Free the scratch if it was allocated. */
static void free_scratch(double *local, double *scratch)
{
    if (scratch != local)
        free(scratch);
}

/* ---- rows ----------------------------------------------------------------------------------- */

/* Copy the lower triangle of a (d, d) to `packed`. Returns 1 if a is exactly symmetric, else 0. */
static int pack_symmetric(const double *a, int64_t d, double *packed)
{
    int64_t symmetric = 1;
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = 0; j <= i; j++) {
            *packed++ = a[i * d + j];
            symmetric &= a[i * d + j] == a[j * d + i];
        }
    return (int)symmetric;
}

/* Copy a packed symmetric matrix to both triangles of a (d, d). */
static void unpack_symmetric(const double *packed, int64_t d, double *a)
{
    for (int64_t i = 0; i < d; i++)
        for (int64_t j = 0; j <= i; j++)
            a[i * d + j] = a[j * d + i] = *packed++;
}

/* Add n data points to gram (d, d) and bias (d). Many points are added to a packed copy, which is
 * faster. Returns a status of ff_batch.h. */
int ff_rank_one_rows(double *gram, double *bias, const double *x, const double *y, int64_t n,
                     int64_t d, int64_t trusted)
{
    if (!trusted && !(ff_all_finite(gram, d * d) && ff_all_finite(bias, d)))
        return FF_BAD_STATE;
    /* If a sum could overflow, nothing is added here, and the caller adds row by row. */
    if (!all_moderate(x, n * d) || !all_moderate(y, n))
        return FF_BAD_ROW;
    /* The packed kernel gives the same bits as single rows. Its vectors may read past the end of a
     * row. */
    double *packed = NULL;
    if (n >= PACK_FROM)
        packed = malloc((size_t)(ff_packed(d) + 8 + CHUNK * (d + 1) + 8) * sizeof(double));
    if (packed && pack_symmetric(gram, d, packed)) {
        double *points = packed + ff_packed(d) + 8;
        for (int64_t first = 0; first < n; first += CHUNK) {
            const int64_t chunk = n - first < CHUNK ? n - first : CHUNK;
            for (int64_t p = 0; p < chunk; p++) {
                memcpy(points + p * (d + 1), x + (first + p) * d, (size_t)d * sizeof(double));
                points[p * (d + 1) + d] = y[first + p];
            }
            ff_accumulate_many(packed, bias, points, chunk, d);
        }
        unpack_symmetric(packed, d, gram);
    } else {
        for (int64_t p = 0; p < n; p++)
            ff_rank_one(gram, bias, x + p * d, y[p], d);
    }
    free(packed);
    return FF_FINE;
}

/* Update an inverse (d, d) by n rows, after checking that all rows are finite and that x' V^{-1} x
 * does not overflow. Returns a status of ff_batch.h. */
int ff_sherman_morrison_rows(double *inverse, const double *x, int64_t n, int64_t d,
                             int64_t trusted)
{
    double local[STACK_DOUBLES], *scratch;
    if (!trusted && !ff_is_symmetric(inverse, d))
        return FF_BAD_STATE;
    if (!rows_are_finite(x, NULL, n, d))
        return FF_BAD_ROW;
    if (!(scratch = get_scratch(local, d)))
        return FF_NO_MEMORY;
    for (int64_t p = 0; p < n && !trusted; p++) {
        const double square = quadratic_form(inverse, x + p * d, d, scratch);
        if (!(square >= 0.0 && square < INFINITY)) {
            free_scratch(local, scratch);
            return FF_BAD_ROW;
        }
    }
    for (int64_t p = 0; p < n; p++)
        ff_sherman_morrison(inverse, x + p * d, d, scratch);
    free_scratch(local, scratch);
    return FF_FINE;
}

/* Update the inverse factor and theta by n data points, after checking them. Returns a status of
 * ff_batch.h. */
int ff_factor_rows(double *factor, double *theta, const double *x, const double *y, int64_t n,
                   int64_t d, int64_t trusted)
{
    double local[STACK_DOUBLES], *scratch;
    if (!trusted && !(ff_is_inverse_factor(factor, d) && ff_all_finite(theta, d)))
        return FF_BAD_STATE;
    if (!rows_are_finite(x, y, n, d))
        return FF_BAD_ROW;
    if (!(scratch = get_scratch(local, 4 * d)))
        return FF_NO_MEMORY;
    /* ||W x|| only shrinks as rows are added, so checking all rows with the first factor is enough.
     * Nearly always norms_are_small proves it for all rows, and only row 0 is multiplied by W. Rows
     * are checked from the last to the first, so the scratch then holds W x of row 0, which is used
     * first. */
    for (int64_t p = n > 1 && norms_are_small(factor, x, n, d) ? 0 : n - 1; p >= 0 && n; p--) {
        ff_whiten(factor, x + p * d, d, scratch);
        if (!(ff_dot(scratch, scratch, d) <= LARGEST_SQUARE)) {
            free_scratch(local, scratch);
            return FF_BAD_ROW;
        }
    }
    if (n > 0)
        ff_observe_whitened(factor, theta, x, y[0], d, scratch);
    for (int64_t p = 1; p < n; p++)
        ff_observe(factor, theta, x + p * d, y[p], d, scratch);
    free_scratch(local, scratch);
    return FF_FINE;
}

/* Compute the inverse factor W of each of m matrices V (d, d), into factor (m, d, d). Returns a
 * status of ff_batch.h. */
int ff_inverse_factors(const double *v, int64_t m, int64_t d, double *factor, int64_t trusted)
{
    double local[STACK_DOUBLES], *packed = get_scratch(local, ff_packed(d));
    int status = packed ? FF_FINE : FF_NO_MEMORY;
    for (int64_t k = 0; k < m && status == FF_FINE; k++) {
        const double *matrix = v + k * d * d;
        double *target = packed;
        if (!trusted && !ff_is_symmetric(matrix, d)) {
            status = FF_BAD_STATE;
            break;
        }
        for (int64_t i = 0; i < d; i++, target += i)
            memcpy(target, matrix + i * d, (size_t)(i + 1) * sizeof(double));
        if (ff_factor(packed, d, factor + k * d * d))
            status = FF_BAD_STATE;
    }
    if (packed)
        free_scratch(local, packed);
    return status;
}

/* Solve V theta = u for each of n rows u (n, d), with the inverse factor of V, into theta (n, d).
 * Returns a status of ff_batch.h. */
int ff_solve_rows(const double *factor, const double *u, int64_t n, int64_t d, double *theta,
                  int64_t trusted)
{
    double local[STACK_DOUBLES], *scratch;
    if (!trusted && !ff_is_inverse_factor(factor, d))
        return FF_BAD_STATE;
    if (!rows_are_finite(u, NULL, n, d))
        return FF_BAD_ROW;
    if (!(scratch = get_scratch(local, d)))
        return FF_NO_MEMORY;
    for (int64_t p = 0; p < n; p++)
        ff_solve(factor, u + p * d, d, scratch, theta + p * d);
    free_scratch(local, scratch);
    return trusted || rows_are_finite(theta, NULL, n, d) ? FF_FINE : FF_BAD_ROW;
}

/* ---- sets of actions ------------------------------------------------------------------------ */

/* Return a view of the i-th action set. */
ff_actions ff_one_set(const ff_sets *sets, int64_t i)
{
    const int64_t size = sets->is_double ? sizeof(double) : sizeof(float);
    return (ff_actions){
        .x = (const char *)sets->x + i * sets->set_stride * size,
        .is_double = sets->is_double,
        .action_stride = sets->action_stride,
        .feature_stride = sets->feature_stride,
        .actions = sets->actions,
    };
}

/* Return 1 if all features of action a of a set are finite. */
static int row_is_finite(const ff_sets *sets, const ff_actions *actions, int64_t a)
{
    const int64_t offset = a * actions->action_stride, fs = actions->feature_stride;
    for (int64_t j = 0; j < sets->dimension; j++) {
        const double entry = actions->is_double
                                 ? ((const double *)actions->x)[offset + j * fs]
                                 : (double)((const float *)actions->x)[offset + j * fs];
        if (!isfinite(entry))
            return 0;
    }
    return 1;
}

/* Return 1 if all features of a set of actions are finite. Sets are checked one by one, just before
 * they are used. */
static int set_is_finite(const ff_sets *s, const ff_actions *actions)
{
    if (actions->feature_stride == 1 && actions->action_stride == s->dimension) {
        const int64_t size = s->actions * s->dimension;
        return s->is_double ? ff_all_finite(actions->x, size) : all_finite_f32(actions->x, size);
    }
    for (int64_t a = 0; a < s->actions; a++)
        if (!row_is_finite(s, actions, a))
            return 0;
    return 1;
}

/* Return 1 if all models, factor (models, d, d) and theta (models, d), are valid. */
static int models_are_valid(const double *factor, const double *theta, int64_t models, int64_t d)
{
    for (int64_t k = 0; k < models; k++)
        if (!ff_is_inverse_factor(factor + k * d * d, d) || !ff_all_finite(theta + k * d, d))
            return 0;
    return 1;
}

/* Compute the scores of all jobs (pairs of a set and a model) into scores (jobs, K). If scores is
 * NULL, write the index of the largest score of each job to index (jobs) instead. Returns a status
 * of ff_batch.h. */
static int run_sets(const ff_sets *sets, const double *factor, const double *theta, int64_t models,
                    double radius, double second_radius, int64_t trusted, double *scores,
                    int64_t *index)
{
    const int64_t d = sets->dimension, jobs = sets->sets > models ? sets->sets : models;
    /* If there is one set, or one model, it serves all jobs (its step is 0). */
    const int64_t set_step = sets->sets > 1, model_step = models > 1;
    double local[STACK_DOUBLES], *scratch;
    int status = FF_FINE;
    if (!trusted && !models_are_valid(factor, theta, models, d))
        return FF_BAD_STATE;
    if (!(scratch = get_scratch(local, d + ff_score_scratch(d, sets->actions))))
        return FF_NO_MEMORY;
    for (int64_t job = 0; job < jobs; job++) {
        const ff_actions actions = ff_one_set(sets, set_step * job);
        const double *w = factor + model_step * job * d * d;
        const double *estimate = theta + model_step * job * d;
        if ((job == 0 || set_step) && !set_is_finite(sets, &actions)) {
            status = FF_BAD_ROW;
            break;
        }
        int is_moderate;
        if (scores) {
            double *job_scores = scores + job * sets->actions;
            ff_scores(&actions, w, estimate, radius, second_radius, d, scratch + d, job_scores);
            is_moderate = trusted || ff_all_finite(job_scores, sets->actions);
        } else {
            /* An action whose score overflows would have the largest score, so it is enough to
             * check the chosen action. ff_select writes its features to `scratch`. */
            index[job] = ff_select(&actions, w, estimate, radius, second_radius, d, scratch + d,
                                   scratch);
            is_moderate = sum_of_squares(scratch, d) < MODERATE_SQUARE;
        }
        if (!is_moderate) {
            status = FF_BAD_ROW;
            break;
        }
    }
    free_scratch(local, scratch);
    return status;
}

/* Compute the scores of every action of every set; ff_batch.h says which model belongs to a set. */
int ff_score_sets(const ff_sets *sets, const double *factor, const double *theta, int64_t models,
                  double radius, double second_radius, int64_t trusted, double *out)
{
    return run_sets(sets, factor, theta, models, radius, second_radius, trusted, out, NULL);
}

/* Choose the action with the largest score in every set; ff_batch.h says which model belongs to a
 * set. */
int ff_argmax_sets(const ff_sets *sets, const double *factor, const double *theta, int64_t models,
                   double radius, double second_radius, int64_t trusted, int64_t *out)
{
    return run_sets(sets, factor, theta, models, radius, second_radius, trusted, NULL, out);
}
