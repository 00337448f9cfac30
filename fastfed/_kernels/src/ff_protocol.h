/* The arithmetic of protocols: p-sums, noisy nodes, prefixes, and V from what was released.
 *
 * A statistic is one vector of s = d + d (d + 1) / 2 numbers: the bias sum x y, then the packed
 * lower triangle of the covariance sum x x'. */
#ifndef FF_PROTOCOL_H
#define FF_PROTOCOL_H

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

/* W and theta of V = lambda I + covariance, u = bias. While V is not positive definite it is
 * shifted by lambda, 2 lambda, 4 lambda, ... more; returns the shift (0 when none was needed),
 * or -1 when no shift helps (the statistic is not finite). scratch: packed V and d more. */
double ff_refresh(const double *restrict statistic, double lambda, int64_t d, double *restrict w,
                  double *restrict theta, double *restrict scratch);

/* The least lambda of full j / 8, j = 0..7, that leaves every eigenvalue of covariance + lambda I
 * above `floor`, else `full`. w: d x d, scratch: packed V. */
double ff_choose_regularizer(const double *restrict statistic, double full, double floor,
                             int64_t d, double *restrict w, double *restrict scratch);

/* Confidence radii: multiplier (offset + scale sqrt(width)), where `width` is base + d ln(1 +
 * count / (d lambda)), or with `determinant` inflation (base + ln det V + d ln(inflation /
 * anchor)); see bandits/radius.py. */
typedef struct {
    double multiplier, scale, base;
    int64_t determinant;
    double anchor;
} ff_radius;
double ff_radius_at(const ff_radius *radius, double offset, double lambda, double count,
                    int64_t d);
/* ln(inflation / anchor), which stays from one synchronisation to the next. */
double ff_log_inflation(const ff_radius *radius, double inflation);
double ff_determinant_radius(const ff_radius *radius, double offset, double inflation,
                             double log_inflation, double log_det, int64_t d);

#endif
