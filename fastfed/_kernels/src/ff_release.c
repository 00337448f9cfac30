/* Symbols: a row is a statistic of s numbers, or s standard normals; k counts releases. */
#include "ff_release.h"

#include <math.h>

#include "ff_random.h"

/* Compute Honaker's estimate of a node: the weighted mean of its noisy value and the sum of the
 * estimates of its two children. estimate (s) holds the estimate of one child and receives that of
 * the node; sibling (s) is the estimate of the other child. level: that of the node, at
 * least 1 (leaves have level 0). */
void ff_honaker(double *restrict estimate, const double *restrict node,
                const double *restrict sibling, int64_t level, int64_t s)
{
    const double v = 1.0 / (2.0 - ldexp(1.0, -(int)level)), children_weight = 1.0 - v;
    for (int64_t j = 0; j < s; j++)
        estimate[j] = v * node[j] + children_weight * (sibling[j] + estimate[j]);
}

/* Return the number of leaf k >= 1 of Honaker's tree. Leaves and all other nodes are numbered
 * together, from 1, in the order of their release: each leaf is followed by the nodes that it
 * completes. The n = k - 1 leaves before leaf k complete sum_{j >= 0} floor(n / 2^j) nodes, the
 * leaves included. That is 2 n minus the number of ones in the bits of n. Leaf k has the next
 * number. */
int64_t ff_honaker_number(int64_t k)
{
    int64_t ones = 0;
    for (int64_t remaining = k - 1; remaining; remaining &= remaining - 1)
        ones++;
    return 2 * (k - 1) - ones + 1;
}

/* Return the number of draws that the published code of chowdhury-zhou-2022 adds up in prefix k. */
int64_t ff_nested_draws(int64_t k)
{
    return k ? 1 + (int64_t)ff_log((double)(k + 1)) : 0;
}

/* out (n) += four rows (n entries each, s apart) times their weights (step apart). Each entry is
 * added up in the order of the rows, as by add_one. */
FF_INLINE void add_four(const double *restrict rows, int64_t s, const double *restrict weights,
                        int64_t step, int64_t n, double *restrict out)
{
    const double a = weights[0], b = weights[step], c = weights[2 * step], e = weights[3 * step];
    for (int64_t j = 0; j < n; j++)
        out[j] = (((out[j] + a * rows[j]) + b * rows[s + j]) + c * rows[2 * s + j]) +
                 e * rows[3 * s + j];
}

/* out (n) += weight times row (n). */
FF_INLINE void add_one(const double *restrict row, double weight, int64_t n, double *restrict out)
{
    for (int64_t j = 0; j < n; j++)
        out[j] += weight * row[j];
}

/* Number of entries of each row that are processed together: they fit into the first-level cache
 * with those of all sums. */
#define PART 256

/* out (s) += the sum over i < k of weights[i * step] times row i of `rows` (k, s). */
void ff_add_weighted(const double *restrict rows, const double *restrict weights, int64_t step,
                     int64_t k, int64_t s, double *restrict out)
{
    for (int64_t first = 0; first < s; first += PART) {
        const int64_t n = s - first < PART ? s - first : PART;
        int64_t i = 0;
        for (; i + 4 <= k; i += 4)
            add_four(rows + i * s + first, s, weights + i * step, step, n, out + first);
        for (; i < k; i++)
            add_one(rows + i * s + first, weights[i * step], n, out + first);
    }
}

/* Compute `count` weighted sums of the first k rows (k, s), in one pass over these rows. Sum j is
 * stored in row k + j. In sum j, row i has the weight weights[j * next + i * step]. */
void ff_weighted_sums(double *rows, int64_t k, int64_t count, const double *restrict weights,
                      int64_t next, int64_t step, int64_t s)
{
    double *sums = rows + k * s;
    memset(sums, 0, (size_t)(count * s) * sizeof(double));
    for (int64_t first = 0; first < s; first += PART) {
        const int64_t n = s - first < PART ? s - first : PART;
        int64_t i = 0;
        for (; i + 4 <= k; i += 4)
            for (int64_t j = 0; j < count; j++)
                add_four(rows + i * s + first, s, weights + j * next + i * step, step, n,
                         sums + j * s + first);
        for (; i < k; i++)
            for (int64_t j = 0; j < count; j++)
                add_one(rows + i * s + first, weights[j * next + i * step], n,
                        sums + j * s + first);
    }
}

/* Round values plus std times noise to a grid (s entries each). The noise is known up to `error`;
 * doubtful[j] is 1 if that leaves the rounding of entry j open. Returns the number of doubtful
 * entries. */
int64_t ff_round_noisy(const double *restrict values, const double *restrict noise,
                       const double *restrict std, const double *restrict grid, double error,
                       int64_t s, double *restrict out, uint8_t *restrict doubtful)
{
    int64_t doubtful_count = 0;
    for (int64_t j = 0; j < s; j++) {
        /* Quotients by powers of two, floors and their remainders are exact. */
        const double steps = values[j] / grid[j], whole_steps = floor(steps);
        const double ratio = std[j] / grid[j];
        const double position = (steps - whole_steps) + ratio * noise[j];
        /* Round to the nearest integer: doubles near 1.5 2^52 are whole numbers. Valid below
         * 2^51. */
        const double nearest = (position + 6755399441055744.0) - 6755399441055744.0;
        /* 2^-51 covers the rounding error of `position`. */
        const double uncertainty = ratio * error + (fabs(position) + 1.0) * 4.440892098500626e-16;
        out[j] = (whole_steps + nearest) * grid[j];
        doubtful[j] = !(fabs(position - nearest) + uncertainty < 0.5);
        doubtful_count += doubtful[j];
    }
    return doubtful_count;
}

/* Compute the noise of the next prefix, out (s), from its draw z (s) and q decaying sums of all
 * draws, buffers (q, s). coefficients: the weight of z, then decay and weight of each decaying
 * sum. */
void ff_buffered(const double *restrict z, const double *restrict coefficients, int64_t q,
                 int64_t s, double *restrict buffers, double *restrict out)
{
    for (int64_t j = 0; j < s; j++)
        out[j] = coefficients[0] * z[j];
    for (int64_t i = 0; i < q; i++) {
        const double decay = coefficients[2 * i + 1], weight = coefficients[2 * i + 2];
        double *restrict buffer = buffers + i * s;
        for (int64_t j = 0; j < s; j++) {
            buffer[j] = decay * buffer[j] + z[j];
            out[j] += weight * buffer[j];
        }
    }
}

/* Compute the first n coefficients of 1 / ((1 - x) b(x)). Here b(x) is the power series of
 * ff_buffered: if z_k is its draw for prefix k, the noise of that prefix is sum_j b_j z_{k-j}. With
 * the names of ff_buffered, b(x) = coefficients[0] + sum_i weight_i / (1 - decay_i x). */
void ff_buffered_column(const double *restrict coefficients, int64_t q, int64_t n,
                        double *restrict state, double *restrict out)
{
    double first = coefficients[0], sum = 0.0;
    for (int64_t i = 0; i < q; i++)
        first += coefficients[2 * i + 2];
    memset(state, 0, (size_t)q * sizeof *state);
    for (int64_t k = 0; k < n; k++) {
        /* z is coefficient k of 1 / b(x): the draw for which the noise is 1 in the first prefix and
         * 0 in all others. `sum` is then coefficient k of 1 / ((1 - x) b(x)). */
        double z = k == 0 ? 1.0 : 0.0;
        for (int64_t i = 0; i < q; i++) {
            state[i] *= coefficients[2 * i + 1];
            z -= coefficients[2 * i + 2] * state[i];
        }
        z /= first;
        for (int64_t i = 0; i < q; i++)
            state[i] += z;
        sum += z;
        out[k] = sum;
    }
}
