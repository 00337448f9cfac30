/* Sums of statistics: the binary tree of partial sums (p-sums), its prefixes, and Gaussian noise.
 *
 * A statistic is what ridge regression needs of the data: one vector of s = d + d (d + 1) / 2
 * numbers, the bias sum x y, then the packed lower triangle of the covariance sum x x'. */
#ifndef FF_AGGREGATION_H
#define FF_AGGREGATION_H

#include "ff_base.h"
#include "ff_random.h"

FF_INLINE int64_t ff_statistic(int64_t d) { return d + d * (d + 1) / 2; }

/* Index of the lowest set bit of k >= 1: the level of the node released at k. */
int64_t ff_node_level(int64_t k);

/* sums[level] <- sums[0] + ... + sums[level - 1] + leaf (zhou-chowdhury-2024, Alg. 2 line 6). */
void ff_psum(double *restrict sums, const double *restrict leaf, int64_t level, int64_t s);

/* out <- the prefix after k leaves: the sum of nodes[j] over the set bits j of k, lowest first. */
void ff_prefix(const double *restrict nodes, int64_t k, int64_t s, double *restrict out);

/* into <- into + from. */
void ff_add(double *restrict into, const double *restrict from, int64_t s);

/* into <- into from, entry by entry. */
void ff_multiply(double *restrict into, const double *restrict from, int64_t s);

/* out <- factor from. */
void ff_scale(const double *restrict from, double factor, int64_t s, double *restrict out);

/* Standard deviations of one node's noise: bias entries, off-diagonal and diagonal ones. */
typedef struct {
    double bias, off_diagonal, diagonal;
} ff_noise_std;

/* out <- statistic + noise; normals holds s standard normals in the statistic's order. */
void ff_add_noise(const double *restrict statistic, const double *restrict normals,
                  const ff_noise_std *std, int64_t d, double *restrict out);

/* The s standard normals of (replicate, silo, node), two streams; normals holds
 * ff_noise_capacity(d). */
int64_t ff_noise_capacity(int64_t d);
void ff_node_normals(uint64_t seed, int64_t replicate, int64_t silo, int64_t node, int64_t d,
                     double *restrict normals);

/* The same for the noise of a node that is the sum over so many silos, drawn once. */
void ff_sum_normals(uint64_t seed, int64_t replicate, int64_t silos, int64_t node, int64_t d,
                    double *restrict normals);

#endif
