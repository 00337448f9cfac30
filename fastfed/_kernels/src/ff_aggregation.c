#include "ff_aggregation.h"

/* Return the level of the tree node that leaf k >= 1 completes: the index of k's lowest set bit. */
int64_t ff_node_level(int64_t k)
{
    int64_t level = 0;
    while (!((k >> level) & 1))
        level++;
    return level;
}

/* Set sum[j] += term[j] for s entries. */
void ff_add(double *restrict sum, const double *restrict term, int64_t s)
{
    for (int64_t j = 0; j < s; j++)
        sum[j] += term[j];
}

/* Set product[j] *= factor[j] for s entries. */
void ff_multiply(double *restrict product, const double *restrict factor, int64_t s)
{
    for (int64_t j = 0; j < s; j++)
        product[j] *= factor[j];
}

/* Write factor times from (s entries) to out. */
void ff_scale(const double *restrict from, double factor, int64_t s, double *restrict out)
{
    for (int64_t j = 0; j < s; j++)
        out[j] = factor * from[j];
}

/* Compute the p-sum (the sum of the leaves below a node of the tree) of the node at `level` that
 * `leaf` (s) completes, into row `level` of sums (., s). The rows of lower levels hold the p-sums
 * of the other nodes below it. */
void ff_psum(double *restrict sums, const double *restrict leaf, int64_t level, int64_t s)
{
    double *node = sums + level * s;
    if (level == 0) {
        memcpy(node, leaf, (size_t)s * sizeof(double));
        return;
    }
    memcpy(node, sums, (size_t)s * sizeof(double));
    for (int64_t j = 1; j < level; j++)
        ff_add(node, sums + j * s, s);
    ff_add(node, leaf, s);
}

/* Compute the prefix sum, the sum of the first k leaves, into out (s). Row j of nodes (., s) is the
 * latest node of level j of the binary tree. The prefix sum adds the rows j for which binary digit
 * j of k is 1. */
void ff_prefix(const double *restrict nodes, int64_t k, int64_t s, double *restrict out)
{
    memset(out, 0, (size_t)s * sizeof(double));
    for (int64_t j = 0; k >> j; j++)
        if ((k >> j) & 1)
            ff_add(out, nodes + j * s, s);
}

/* out (s) <- statistic (s) + noise. The noise is normals (s) times the standard deviations in *std:
 * `bias` for the first d entries, then `diagonal` or `off_diagonal` for the entries of the packed
 * covariance. */
void ff_add_noise(const double *restrict statistic, const double *restrict normals,
                  const ff_noise_std *std, int64_t d, double *restrict out)
{
    for (int64_t j = 0; j < d; j++)
        out[j] = statistic[j] + std->bias * normals[j];
    const double *restrict from = statistic + d, *restrict z = normals + d;
    double *restrict to = out + d;
    for (int64_t i = 0, e = 0; i < d; i++) {
        for (int64_t j = 0; j < i; j++, e++)
            to[e] = from[e] + std->off_diagonal * z[e];
        to[e] = from[e] + std->diagonal * z[e];
        e++;
    }
}

/* Return a number of doubles that has space for drawing the normals of one statistic. The normals
 * of the covariance begin at entry d. Both draws (draw_two_streams) write whole vectors, so they
 * write more than the statistic's numbers. */
int64_t ff_noise_capacity(int64_t d)
{
    return d + ff_normal_capacity_f64(d * (d + 1) / 2) + ff_normal_capacity_f64(d);
}

/* Draw the normals of bias and covariance from two streams with these purposes. */
FF_INLINE void draw_two_streams(uint64_t seed, uint64_t bias_purpose, uint64_t cov_purpose,
                                int64_t replicate, int64_t silo, int64_t node, int64_t d,
                                double *restrict normals)
{
    const ff_stream bias = ff_stream_open(seed, bias_purpose, (uint32_t)replicate,
                                          (uint32_t)silo, (uint32_t)node);
    const ff_stream cov = ff_stream_open(seed, cov_purpose, (uint32_t)replicate,
                                         (uint32_t)silo, (uint32_t)node);
    /* The bias is drawn first; the covariance then overwrites the extra draws of the bias. */
    ff_normals_f64(&bias, d, normals);
    ff_normals_f64(&cov, d * (d + 1) / 2, normals + d);
}

/* Draw the standard normals of one silo's tree node, from one stream for the bias and one for the
 * covariance. */
void ff_node_normals(uint64_t seed, int64_t replicate, int64_t silo, int64_t node, int64_t d,
                     double *restrict normals)
{
    draw_two_streams(seed, FF_BIAS_NOISE, FF_COV_NOISE, replicate, silo, node, d, normals);
}

/* Draw standard normals as ff_node_normals does, for noise that is drawn once for all silos. These
 * streams have their own purposes, and their `silo` is the number of silos instead of the index of
 * one silo. */
void ff_sum_normals(uint64_t seed, int64_t replicate, int64_t silos, int64_t node, int64_t d,
                    double *restrict normals)
{
    draw_two_streams(seed, FF_SUM_BIAS_NOISE, FF_SUM_COV_NOISE, replicate, silos, node, d, normals);
}
