/* Sums of statistics: the binary tree of partial sums (p-sums), prefix sums, and Gaussian noise.
 *
 * A statistic is the data that ridge regression needs: one vector of s = d + d (d + 1) / 2 numbers,
 * the bias sum x y, then the packed lower triangle of the covariance sum x x'. */
#ifndef FF_AGGREGATION_H
#define FF_AGGREGATION_H

#include "ff_base.h"
#include "ff_random.h"

/* Return s, the number of doubles in a statistic. */
FF_INLINE int64_t ff_statistic(int64_t d) { return d + d * (d + 1) / 2; }

/* Return the index of the lowest set bit of k >= 1: the level of the node that leaf k completes. */
int64_t ff_node_level(int64_t k);

/* Compute the p-sum of a node: sums[level] <- sums[0] + ... + sums[level - 1] + leaf
 * (zhou-chowdhury-2024, Alg. 2 line 6). */
void ff_psum(double *restrict sums, const double *restrict leaf, int64_t level, int64_t s);

/* Compute the prefix sum after k leaves: the sum of nodes[j] over the set bits j of k, lowest
 * first. */
void ff_prefix(const double *restrict nodes, int64_t k, int64_t s, double *restrict out);

/* into <- into + from. */
void ff_add(double *restrict into, const double *restrict from, int64_t s);

/* into <- into times from, entry by entry. */
void ff_multiply(double *restrict into, const double *restrict from, int64_t s);

/* out <- factor times from. */
void ff_scale(const double *restrict from, double factor, int64_t s, double *restrict out);

/* Standard deviations of the noise of a node: of bias entries, and of off-diagonal and diagonal
 * covariance entries. */
typedef struct {
    double bias, off_diagonal, diagonal;
} ff_noise_std;

/* out <- statistic + noise; normals: s standard normals in the order of the statistic. */
void ff_add_noise(const double *restrict statistic, const double *restrict normals,
                  const ff_noise_std *std, int64_t d, double *restrict out);

/* Draw the s standard normals of (replicate, silo, node) from two streams. normals:
 * ff_noise_capacity(d) doubles. */
int64_t ff_noise_capacity(int64_t d);
void ff_node_normals(uint64_t seed, int64_t replicate, int64_t silo, int64_t node, int64_t d,
                     double *restrict normals);

/* Draw the s standard normals of the noise of a sum over `silos` silos, if it is drawn once. */
void ff_sum_normals(uint64_t seed, int64_t replicate, int64_t silos, int64_t node, int64_t d,
                    double *restrict normals);

#endif
